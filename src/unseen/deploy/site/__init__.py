"""The site's side: answers to jobs, its policy, approvals, privacy budget and ledger of what left."""
