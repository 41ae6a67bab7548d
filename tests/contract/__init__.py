"""One suite for each protocol; what implements it joins by one entry."""
