"""Adapters: where workloads run, and everything physical that a job names. Import protocols, never conductor."""
