"""Folders of images: listed, decoded, cached, checked."""
