"""Attacks and mistakes that must do no harm, and the files of a secure cluster."""
