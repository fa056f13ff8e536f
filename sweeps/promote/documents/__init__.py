"""What people read of a promotion: findings, report, feedback, and the change for reviewers."""
