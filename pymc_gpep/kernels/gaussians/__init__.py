"""The Gaussian posteriors that sites imply, by the structure of the sites."""
