"""The front door of the learner: prompt leases, ledger, intake, scheduling, batches."""
