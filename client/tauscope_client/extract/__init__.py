"""Hidden states of whole data sets in files, for offline training: `tauscope extract`."""
