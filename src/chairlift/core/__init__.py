"""Words that every room speaks; standard library only."""
