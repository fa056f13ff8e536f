"""Requests that leave an instance before they are done there, and instances that stop or come back."""
