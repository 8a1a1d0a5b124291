//! Packets of one connection, from 10.0.0.1:40000 (the client) to 10.0.0.2:80, as a capture keeps them. Tests of the
//! command line use them, too.

/// An IPv4 TCP packet with so much payload: its headers, and its length on the wire in bytes.
pub fn packet(from_client: bool, seq: u32, ack: u32, payload: u16) -> (Vec<u8>, u32) {
    let (client, server) = ([10, 0, 0, 1], [10, 0, 0, 2]);
    let (source, destination) = if from_client { (client, server) } else { (server, client) };
    let ports: [u16; 2] = if from_client { [40_000, 80] } else { [80, 40_000] };
    let mut packet = vec![0x45, 0];
    packet.extend((40 + payload).to_be_bytes());
    packet.extend([0, 0, 0x40, 0, 64, 6, 0, 0]);
    packet.extend([source, destination].concat());
    ports.iter().for_each(|port| packet.extend(port.to_be_bytes()));
    packet.extend(seq.to_be_bytes());
    packet.extend(ack.to_be_bytes());
    packet.extend([0x50, 0x10, 0x20, 0, 0, 0, 0, 0]);
    (packet, 40 + u32::from(payload))
}
