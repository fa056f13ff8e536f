"""What principles say in numbers: facts, and rules about instances, routing and fairness."""
