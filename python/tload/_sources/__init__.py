"""What loads read: locations, headers, and how both are opened."""
