package main

import (
	"context"
	"log"
	"net"
	"os"

	"google.golang.org/grpc"
	registration "k8s.io/kubelet/pkg/apis/pluginregistration/v1"
)

// registrar answers the kubelet, which asks each socket in its directory of plugins.
type registrar struct {
	registration.UnimplementedRegistrationServer
	name, socket string
}

func (r registrar) GetInfo(context.Context, *registration.InfoRequest) (*registration.PluginInfo, error) {
	return &registration.PluginInfo{
		Type:              registration.CSIPlugin,
		Name:              r.name,
		Endpoint:          r.socket,
		SupportedVersions: []string{"1.0.0"},
	}, nil
}

func (r registrar) NotifyRegistrationStatus(_ context.Context, status *registration.RegistrationStatus) (*registration.RegistrationStatusResponse, error) {
	log.Printf("registered: %v %s", status.PluginRegistered, status.Error)
	return &registration.RegistrationStatusResponse{}, nil
}

func register(name, socket, at string) error {
	_ = os.Remove(at)
	listener, err := net.Listen("unix", at)
	if err != nil {
		return err
	}
	server := grpc.NewServer()
	registration.RegisterRegistrationServer(server, registrar{name: name, socket: socket})
	return server.Serve(listener)
}
