"""Pictures and captions: from the files of a data set to batches."""
