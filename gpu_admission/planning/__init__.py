"""Before and after the traffic: plan, calibrate, replay."""
