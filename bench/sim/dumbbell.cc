// Four Reno flows on a dumbbell of 100 Mbit/s and 40 ms in ns-3, as crates/sim/examples/dumbbell.rs has it.
// Prints one line of JSON: packets sent over links and goodput.
#include "ns3/applications-module.h"
#include "ns3/core-module.h"
#include "ns3/internet-module.h"
#include "ns3/network-module.h"
#include "ns3/point-to-point-module.h"

#include <cstdio>
#include <cstdlib>

using namespace ns3;

static const int FLOWS = 4;
static uint64_t packets;

static void sent(Ptr<const Packet>)
{
    ++packets;
}

static Ipv4InterfaceContainer join(Ipv4AddressHelper &addresses, Ptr<Node> a, Ptr<Node> b, const char *rate,
                                   const char *delay, const char *limit)
{
    PointToPointHelper cable;
    cable.SetDeviceAttribute("DataRate", StringValue(rate));
    cable.SetChannelAttribute("Delay", StringValue(delay));
    // The queue of the device is the only one: no queue discipline above it.
    cable.SetQueue("ns3::DropTailQueue", "MaxSize", StringValue(limit));
    cable.DisableFlowControl();
    NetDeviceContainer devices = cable.Install(a, b);
    for (uint32_t i = 0; i < 2; i++)
        devices.Get(i)->TraceConnectWithoutContext("PhyTxEnd", MakeCallback(&sent));
    Ipv4InterfaceContainer made = addresses.Assign(devices);
    addresses.NewNetwork();
    return made;
}

int main(int argc, char **argv)
{
    double seconds = argc > 1 ? atof(argv[1]) : 60;
    Config::SetDefault("ns3::TcpL4Protocol::SocketType", StringValue("ns3::TcpLinuxReno"));
    Config::SetDefault("ns3::TcpSocket::SegmentSize", UintegerValue(1448));
    Config::SetDefault("ns3::TcpSocket::InitialCwnd", UintegerValue(10));
    Config::SetDefault("ns3::TcpSocket::SndBufSize", UintegerValue(16 << 20));
    Config::SetDefault("ns3::TcpSocket::RcvBufSize", UintegerValue(16 << 20));

    NodeContainer routers, left, right;
    routers.Create(2);
    left.Create(FLOWS);
    right.Create(FLOWS);
    InternetStackHelper stack;
    stack.InstallAll();
    Ipv4AddressHelper addresses("10.0.0.0", "255.255.255.0");
    join(addresses, routers.Get(0), routers.Get(1), "100Mbps", "18ms", "333p");
    ApplicationContainer sinks;
    for (int i = 0; i < FLOWS; i++) {
        join(addresses, left.Get(i), routers.Get(0), "1Gbps", "1ms", "100000p");
        Ipv4InterfaceContainer far = join(addresses, routers.Get(1), right.Get(i), "1Gbps", "1ms", "100000p");
        BulkSendHelper source("ns3::TcpSocketFactory", InetSocketAddress(far.GetAddress(1), 5001));
        source.Install(left.Get(i)).Start(MilliSeconds(100 * i));
        PacketSinkHelper sink("ns3::TcpSocketFactory", InetSocketAddress(Ipv4Address::GetAny(), 5001));
        sinks.Add(sink.Install(right.Get(i)));
    }
    sinks.Start(Seconds(0));
    Ipv4GlobalRoutingHelper::PopulateRoutingTables();
    Simulator::Stop(Seconds(seconds));

    Simulator::Run();

    uint64_t received = 0;
    for (uint32_t i = 0; i < sinks.GetN(); i++)
        received += DynamicCast<PacketSink>(sinks.Get(i))->GetTotalRx();
    printf("{\"simulated_s\": %g, \"packets\": %lu, \"goodput_mbit_per_s\": %.1f}\n", seconds, packets,
           received * 8 / seconds / 1e6);
}
