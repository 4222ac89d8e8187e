"""What runs beside a job's own workloads, because the job says so: ``[fleet.roles.NAME]``."""
