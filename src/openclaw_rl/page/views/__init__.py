"""The views of the page: queries of the store in, data of a template out."""
