//! Experiment file to plan, plan to run directory.
