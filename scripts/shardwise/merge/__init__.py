"""One total of several finished runs, in one process.

Results folders come in; a folder with their sum, or their covariance, goes out.
"""
