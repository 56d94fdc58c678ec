"""byteps and its peers as contenders: launch.py starts them, sum_rank.py is a rank."""
