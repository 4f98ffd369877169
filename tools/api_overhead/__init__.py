"""What a replica's door costs: chunks a second of one API process, and the time that it adds to a request."""
