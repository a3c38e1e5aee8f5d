"""FileStreamSink: lines of one file."""
