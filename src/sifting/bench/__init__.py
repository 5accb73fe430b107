"""The proving ground: real tasks, arms and controls under one protocol, and pages of results."""
