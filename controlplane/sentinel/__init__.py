"""The detector process: holds the live state, finds what is wrong, keeps the net under Celery."""
