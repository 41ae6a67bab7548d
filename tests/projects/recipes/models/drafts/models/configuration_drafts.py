class DraftsConfig:
    def __init__(
        self,
        hidden_size=8,
        num_hidden_layers=6,
        first_k_dense_replace=2,
        num_nextn_predict_layers=1,
        n_routed_experts=4,
    ):
        self.hidden_size = hidden_size
        self.num_hidden_layers = num_hidden_layers
        self.first_k_dense_replace = first_k_dense_replace
        self.num_nextn_predict_layers = num_nextn_predict_layers
        self.n_routed_experts = n_routed_experts
