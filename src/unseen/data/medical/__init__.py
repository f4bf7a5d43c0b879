"""Medical images: DICOM files and NIfTI volumes, windowed and oriented, as 2-D pictures."""
