"""The autopilot: selection where it saves time, the plain loop where it does not."""
