"""Eyes: traces and logs. Knows no other room; takes plain numbers and text."""
