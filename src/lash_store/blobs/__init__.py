"""Attachment bytes: where they are kept, behind one small protocol."""
