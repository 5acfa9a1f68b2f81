// Addresses of this host and of others, and the TCP sockets that use them.
#pragma once

#include <string>
#include <vector>

#include "bootstrap/local/local_socket.h"

namespace perseus {

struct Endpoint {
  std::string address;  // numeric
  int port = 0;
};

// Returns the addresses of interfaces that are up. `interfaces` are names such as "eth0,ib0"; empty: any. Loopback is
// included only if it is named or there is nothing else.
std::vector<std::string> own_addresses(const std::string& interfaces);

// Returns the address of this end of a connection.
std::string own_address_of(int socket);

// Listens at a port that the system chooses. Returns nothing if the address cannot be bound, for example while IPv6
// still checks it for duplicates.
UniqueFd listen_at(Endpoint& endpoint);

// Reserves a port at all addresses of this host. Nobody listens there, so this host's kernel refuses connections to it,
// whatever the processes do. Returns nothing if no port can be reserved.
UniqueFd reserve_port(int& port);

// A connection that is being made, or the error with which that has failed at once.
struct Connecting {
  UniqueFd socket;
  int error = 0;
};
Connecting begin_connecting(const Endpoint& endpoint);

// Returns the error of a connection that poll() has returned, or 0 if it is made.
int connecting_error(int socket);

// Returns the milliseconds until the deadline, for poll().
int milliseconds_to(Deadline deadline);

}  // namespace perseus
