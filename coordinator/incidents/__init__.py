"""Incidents and alerts: failures, and figures outside their healthy ranges."""
