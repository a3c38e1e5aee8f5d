"""What a developer needs besides semel: embedded servers, the demonstrations, and the drill."""
