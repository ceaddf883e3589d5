"""Options and components that algorithms share, one a file."""
