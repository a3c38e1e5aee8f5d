"""What a developer needs besides the product: embedded services, the demo, and the drill."""
