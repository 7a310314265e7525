"""The detector process: holds the hot picture, finds what is wrong, keeps the net under Celery."""
