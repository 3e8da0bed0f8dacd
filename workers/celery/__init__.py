"""Warren as a broker and a result backend of Celery, and as a broker of other task queues."""
