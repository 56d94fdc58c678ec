"""byteps and its peers as contenders: who starts them (launch.py), what their ranks do (sum_rank.py)."""
