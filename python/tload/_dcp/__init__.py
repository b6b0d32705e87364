"""Parts of `tload.dcp`: what the files of ranks hold, their opening, and the storage writer."""
