"""The backend for npugraph_ex: captured graphs whose operators become SuperKernels."""
