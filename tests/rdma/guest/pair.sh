# Two RDMA devices wired to each other: rxe0 on veth0, 10.77.0.1, and rxe1 on veth1, 10.77.0.2.
echo 0 >/proc/sys/net/ipv6/conf/all/accept_dad # or their IPv6 GIDs are not valid for a second or two
echo 0 >/proc/sys/net/ipv6/conf/default/accept_dad

# 4200 bytes hold RDMA's MTU of 4096. One kernel has both addresses, so it would take what goes from one to the other for
# local and hand it over on lo, past the wire. So: what the wire brings is local; what goes from one to the other takes
# the wire; only then comes what the kernel would look at first.
host ip -batch - <<END || fail "make the network"
link add veth0 address 02:77:00:00:00:01 mtu 4200 type veth peer name veth1 address 02:77:00:00:00:02 mtu 4200
addr add 10.77.0.1/24 dev veth0
addr add 10.77.0.2/24 dev veth1
link set veth0 up
link set veth1 up
route add 10.77.0.2 dev veth0 src 10.77.0.1 table 100
route add 10.77.0.1 dev veth1 src 10.77.0.2 table 101
rule add pref 10 iif veth0 lookup local
rule add pref 10 iif veth1 lookup local
rule add pref 20 from 10.77.0.1 to 10.77.0.2 lookup 100
rule add pref 20 from 10.77.0.2 to 10.77.0.1 lookup 101
rule add pref 30 oif veth0 to 10.77.0.2 lookup 100
rule add pref 30 oif veth1 to 10.77.0.1 lookup 101
rule add pref 40 lookup local
rule del pref 0
END
for network in all veth0 veth1; do
  echo 1 >/proc/sys/net/ipv4/conf/$network/accept_local
  echo 0 >/proc/sys/net/ipv4/conf/$network/rp_filter
done
host rdma link add rxe0 type rxe netdev veth0 || fail "make rxe0"
host rdma link add rxe1 type rxe netdev veth1 || fail "make rxe1"
