"""The parts of `gradwatch.collector` and `gradwatch.GradientGainMonitor`."""
