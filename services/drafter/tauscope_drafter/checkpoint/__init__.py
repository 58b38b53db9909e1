"""From files on disk to a described drafter: opening, naming, reading configurations, checking every tensor."""
