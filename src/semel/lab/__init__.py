"""What a developer needs beside the product: embedded services, the demo, and the drill."""
