"""Departures: requests that leave an instance before their last token, and instances that stop or come back."""
