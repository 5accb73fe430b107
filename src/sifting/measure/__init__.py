"""What sifting costs, what it keeps, and how well it chooses."""
