"""The tray icon: state → items (pure), and the painter."""
