"""What the closed form of NTK-SAP costs and is worth."""
