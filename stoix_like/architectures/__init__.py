"""The compiled programs: acting, learning and evaluating, laid out over devices. Nothing here reads or writes files."""
