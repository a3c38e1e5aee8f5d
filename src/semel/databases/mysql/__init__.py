"""MariaDB and MySQL, through PyMySQL."""
