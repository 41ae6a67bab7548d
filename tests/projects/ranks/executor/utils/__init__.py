from executor.utils.common_utils import superkernel_scope
